"""What the objects and functions of torch and of frameworks do, one family a file."""
