"""The engine's GPU kernels, in Triton, one idea a file; each names the paper or program that its algorithm is from.

``cache`` writes the paged KV cache, ``attention`` and ``split_attention`` read it, ``norm``, ``activation``,
``experts`` and ``sampling`` are what lies between. ``operations`` offers them to the decoder, ``variants`` lists
everything that the engine can launch, and ``python -m engine.kernels.report`` compiles that list for GPUs that need not
be there.

Only a module of this package imports Triton, and the engine imports them only for a CUDA device. With
``TRITON_INTERPRET=1`` set before that, the same kernels run on the CPU, slowly, for tests.
"""
