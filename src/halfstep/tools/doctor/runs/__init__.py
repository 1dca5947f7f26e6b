"""What is run: the batch in every format under the tracer, one update on trial, short trainings."""
