"""What a check gives: findings with their source, comments that silence them, the checklist."""
