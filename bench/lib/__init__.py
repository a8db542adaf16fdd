"""The parts of the benchmarks. Python 3.11, standard library only. Start reading at ../run."""
