"""From typed words to a verb: the tree of commands, flags, habits of kubectl, completion, and failures."""
