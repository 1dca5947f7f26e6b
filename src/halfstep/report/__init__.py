"""Records to text, JSON and pages; renderers take records and nothing else."""
