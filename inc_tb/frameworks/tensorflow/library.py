"""TensorFlow, loaded without its greetings."""

import os

from inc_tb.frameworks.tensorflow.quiet import quiet

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # int8 graphs need its kernels, which are not everywhere by default
with quiet():
    import tensorflow as tf

    with tf.Graph().as_default(), tf.compat.v1.Session() as _first:
        _first.run(tf.constant(0))  # what it has to say about itself, it says at the first run

__all__ = ["tf"]
