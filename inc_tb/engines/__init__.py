"""Where work is done in other processes, or on other machines: engines that are there already, behind one face."""
