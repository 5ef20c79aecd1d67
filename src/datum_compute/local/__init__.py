"""The whole federation in one process: embedded planes and the operators that work on them."""
