"""The verbs, one module each. `tree` loads a module only when its verb is used."""
