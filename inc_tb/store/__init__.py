"""TensorBoard's event files: what a run holds, for the Quantization tab and for the standard dashboards."""
