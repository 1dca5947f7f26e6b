"""What a user asks for beside the verdict: named symptoms, dtypes, a bug report, a profile."""
