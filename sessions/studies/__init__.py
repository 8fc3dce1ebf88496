"""Studies: what attribution, sweeps, profiles, checklists and claims measured."""
