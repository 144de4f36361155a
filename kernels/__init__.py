"""CUDA C++ device functions, hash tables that grow, and the compiler at run time."""
