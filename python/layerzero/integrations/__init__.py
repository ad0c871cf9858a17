"""LayerZero inside other libraries; each is imported when it is used."""
