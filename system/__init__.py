"""Operating system of a process: children, threads, disk, heap."""
