"""Tools of development: mutations, endurance, the maker of the pairing table. Nothing of it is installed."""
