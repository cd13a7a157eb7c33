"""Language models: formats of weights, what rounding each layer does to the text, bits for each of them."""
