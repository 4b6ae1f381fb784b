import paddle

net = paddle.nn.Sequential(paddle.nn.Linear(64, 512), paddle.nn.ReLU(), paddle.nn.Linear(512, 8))
optimizer = paddle.optimizer.AdamW(0.001, parameters=net.parameters())
criterion = paddle.nn.CrossEntropyLoss()


def accuracy(logits, labels):
    correct = 0
    for row, label in zip(logits, labels):
        correct += int(row.argmax().item() == label.item())
    return correct / len(labels)


for step in range(120):  # loop
    inputs, labels = paddle.randn([256, 64]), paddle.randint(0, 8, [256])
    logits = net(inputs)
    loss = criterion(logits, labels)
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    score = accuracy(logits, labels)  # planted: 8-12
