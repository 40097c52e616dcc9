"""Copy one table into another: what is there, then what changes, through a tunnel or the change stream."""
