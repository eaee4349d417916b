"""Tools of development that attack the package: mutations, endurance. Nothing of it is installed."""
