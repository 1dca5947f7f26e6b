"""From runs to causes: what came in, the op at which it began, how a user mends it, in words."""
