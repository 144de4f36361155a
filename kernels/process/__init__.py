"""What a process needs of its operating system: children, threads, disk, heap."""
