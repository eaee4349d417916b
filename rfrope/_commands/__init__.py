"""The commands of ``rfrope``, one in each module: its options, what it calls and what it prints."""
