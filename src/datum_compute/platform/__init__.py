"""Small built-ins for installs without Milo or the network operator; they serve the same APIs."""
