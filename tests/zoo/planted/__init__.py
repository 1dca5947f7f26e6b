"""Models with one fault each, by the part of the model that has it."""
