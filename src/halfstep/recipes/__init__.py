"""Recipes that come with halfstep; each module has a ``build()`` that returns a `Recipe`."""
