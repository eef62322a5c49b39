"""DiffusionGemma in plain PyTorch: config, layers, cache, structured read, loaders."""
