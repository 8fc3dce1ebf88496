"""Division of a model among ranks: pipeline stages, tensor-parallel plans, memory of a rank."""
