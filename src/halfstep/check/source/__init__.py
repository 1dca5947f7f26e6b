"""One file of a program: tree, names, scopes, imports, constants; nothing is run."""
