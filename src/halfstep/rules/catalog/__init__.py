"""One file per rule; the name of the file is its code and its name."""
