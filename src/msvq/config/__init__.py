"""Typed settings: recipes, how a run's are put together, and what data and machine decide of them."""
