"""Measurements without a window: a workload on the engine, the scheduler alone, and what being observed costs.

    workload.py    cutaway bench engine       tokens a second, latencies, and the share of each phase
    scheduler.py   cutaway bench scheduler    deciding, with no model behind it
    observe.py     cutaway bench observe      the engine with events, state and recording, over the engine without

Each has a function that returns the figures and one that prints them.
"""
