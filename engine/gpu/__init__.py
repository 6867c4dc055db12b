"""The forward pass on a GPU: inputs at fixed addresses, CUDA graphs, memory.

``device`` is all that is asked of CUDA itself, and a stand-in for it on the CPU; ``inputs`` brings a step to the device
in one copy; ``transfers`` does so for sampling, and fetches what was sampled; ``graphs`` records decode steps and plays
them back; ``path`` is the forward pass made of these; ``memory`` shares the device's memory out; ``warm_up`` compiles
and captures before the first request comes. Only ``path`` imports Triton.
"""
