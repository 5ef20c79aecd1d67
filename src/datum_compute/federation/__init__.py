"""What management and cells share: how a project is recognised on the hub, and how a city is chosen."""
