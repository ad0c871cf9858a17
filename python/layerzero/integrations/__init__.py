"""LayerZero inside other libraries; each is imported on use."""
