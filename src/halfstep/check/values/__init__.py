"""What a name of a program stands for, as far as the rules need it."""
