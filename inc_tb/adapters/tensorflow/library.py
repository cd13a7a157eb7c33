"""TensorFlow, loaded without its greetings."""

from inc_tb.adapters.tensorflow.quiet import quiet

with quiet():
    import tensorflow as tf

    with tf.Graph().as_default(), tf.compat.v1.Session() as _first:
        _first.run(tf.constant(0))  # what it has to say about itself, it says at the first run

__all__ = ["tf"]
