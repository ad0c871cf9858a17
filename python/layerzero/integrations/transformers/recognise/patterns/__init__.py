"""The parts of a layer, one file each: a formula or a short walk through the graph, and the description of what was matched."""
