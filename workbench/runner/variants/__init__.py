"""Built configurations: model, weights, optimizer, compiled step."""
