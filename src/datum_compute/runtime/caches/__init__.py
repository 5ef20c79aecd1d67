"""Objects as this process knows them: informers, indexes, and what keeps them from their plane."""
