"""What management and cells share: identities, policies, withdrawals, obstacles and the rules of removal."""
