"""A cell: one site that creates, rolls, gates and removes its Instances on its own."""
