"""The API of one plane: how requests are read, checked, written and answered."""
