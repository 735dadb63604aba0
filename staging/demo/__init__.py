"""``python -m staging demo``: a model runner's input preparation, step after step, checked.

The parts, each in its module, in the order in which a step passes through them:

======================  ==================================================================
``corpus``              text files, tokenised by bytes and cut into requests
``blocks``              the allocator of the paged KV cache's blocks
``requests``            what the runner knows of each running request, as columns
``scheduler``           which requests run in a step, and how many tokens of each
``inputs``              the step's arrays, built on the host
``stagers``             how they get to the device: one class per way of doing it
``reader``              what the device saw, kept on the device and compared with the host
``model``               the load that keeps a real device busy
``loop``                one step after another through all of these, and the measurements
``place``               on which device
``report``              progress, table, JSON
``cli``                 options and exit status
======================  ==================================================================

Everything up to ``inputs`` is NumPy alone and knows no device.
"""
