"""Long real texts, and models that read them exactly and answer under a budget of cached positions."""
