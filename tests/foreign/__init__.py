"""Other projects' compilers and libraries, where they are installed."""
