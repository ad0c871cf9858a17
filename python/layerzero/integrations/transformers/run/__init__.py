"""What runs in the place of a model's own code: programs of layers, captured steps, and the functions that Transformers calls."""
