import paddle

net = paddle.nn.Sequential(paddle.nn.Linear(64, 512), paddle.nn.ReLU(), paddle.nn.Linear(512, 8))
optimizer = paddle.optimizer.AdamW(0.001, parameters=net.parameters())
criterion = paddle.nn.CrossEntropyLoss()


def accuracy(logits, labels):
    correct = 0
    for row, label in zip(logits, labels):
        correct += int(row.argmax().item() == label.item())  # planted
    return correct / len(labels)


for step in range(60):  # loop
    inputs, labels = paddle.randn([512, 64]), paddle.randint(0, 8, [512])
    logits = net(inputs)
    loss = criterion(logits, labels)
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    score = accuracy(logits, labels)  # planted
