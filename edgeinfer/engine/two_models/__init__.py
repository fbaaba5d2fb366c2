"""Two models write one answer: a small one as a rule, the model itself where the small one hesitates. Not exact."""
