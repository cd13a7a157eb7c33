def judge(*a): return []
