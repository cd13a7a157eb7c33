"""The TensorBoard side of inc-tb."""
